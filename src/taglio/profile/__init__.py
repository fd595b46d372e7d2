"""The only stop-watch: seconds per block and precision, seconds per boundary, on one device."""
