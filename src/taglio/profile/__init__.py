"""Profiles: measured seconds per block and precision, and per boundary, on one device. All timing is done here."""
