"""OneFlow 0.9 as planning sees it: what it executes, in which order, and what it allocates."""
