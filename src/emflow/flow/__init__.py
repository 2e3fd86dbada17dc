"""The map between data x and latent z."""
