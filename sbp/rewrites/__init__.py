"""Rewrites: a program in, the program of a part of its batch out, without tracing it again."""
