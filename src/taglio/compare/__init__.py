"""Every back end's ways to run one model, measured side by side. Plans nothing."""
