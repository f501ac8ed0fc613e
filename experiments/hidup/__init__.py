"""HiDup's studies (Zhang et al., SoCC 2022), as far as planning alone can repeat them."""
