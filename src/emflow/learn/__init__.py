"""The alternating algorithm: training, re-imputation, and the state of a run."""
