"""Plans over shares on ranks with unlike quotas of the CPU, by turns with what else could be done."""
