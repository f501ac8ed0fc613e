"""AMP's own search, to compare with: degrees, placements as dominoes, cuts by dynamic programming."""
