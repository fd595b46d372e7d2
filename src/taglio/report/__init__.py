"""Show what was predicted beside what was measured: terminal tables and one HTML page. Measures nothing."""
