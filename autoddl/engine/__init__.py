"""Engines: what runs plans. Only the packages below, one per engine, import theirs."""
