"""Between the user's table and a float matrix with its missing cells."""
