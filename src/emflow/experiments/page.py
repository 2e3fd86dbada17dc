"""Tables within a Markdown page, between two comments that name them."""

from __future__ import annotations

from pathlib import Path

from emflow.errors import FileError


def insert(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a file; the rest stays as it is."""
    first, last = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(first)
    _, found_too, after = rest.partition(last)
    if not (found and found_too):
        raise FileError(
            f"{path} has no place for {name}: write {first.strip()} and {last.strip()} on lines of their own"
        )
    path.write_text(before + first + text + last + after, encoding="utf-8")
