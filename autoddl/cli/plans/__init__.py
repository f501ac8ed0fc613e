"""Commands that capture programs, plan them, and compare plans."""
