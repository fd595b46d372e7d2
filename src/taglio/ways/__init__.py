"""Ways of running a delivered model: threads of a run, runs at once, items joined in a run. Plans no forms.

Folders in deploy/'s format and a number of cores come in. The way with the highest rate goes out, with what it was
measured to do.
"""
