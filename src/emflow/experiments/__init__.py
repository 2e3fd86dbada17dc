"""The paper's tables and figures: TOML in, one JSON line per cell out, tables and pictures from these lines.

Not imported by the imputers. `plan` says what is to be run, `cell` runs one cell in a process of its own, `run`
schedules them, `results` keeps their lines, `table` and `figure` show them next to the published numbers. What is
about images is beside it in the modules whose names begin with `image`; `catalogue` knows all experiments by name.
"""
