"""Judge the mixed model against the reference on data: the verdict on numbers."""
