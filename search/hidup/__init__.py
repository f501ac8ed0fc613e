"""HiDup's search: forms of tensors and stages of a batch whose two halves run in turn."""
