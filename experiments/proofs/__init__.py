"""The proofs that rules are right: oracle, engine's lists, random plans on real ranks."""
