"""HAP's studies (seed 001), as far as planning alone can repeat them."""
