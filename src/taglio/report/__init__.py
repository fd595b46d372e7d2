"""Show predicted beside measured: terminal tables and one HTML page. Measures nothing."""
