"""The Gaussian of the latent space: conditioning on what is observed, and EM."""
