"""What runs a model on a device. One module per runtime; nothing here plans or measures."""
