"""What one Gaussian leaves over: E-steps that are learnt by hiding further observed values."""
