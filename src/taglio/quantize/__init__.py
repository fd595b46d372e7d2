"""Every way to quantise a model. Does not choose what to quantise."""
