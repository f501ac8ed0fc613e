"""Checkpoints: what training needs to go on, in shards on disk."""
