"""Connect plans to OneFlow; the only package that imports it."""
