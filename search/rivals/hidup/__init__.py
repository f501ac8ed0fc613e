"""HiDup's search: states of tensors, and stages, for a batch whose two halves run in turn."""
