"""The commands: what `taglio optimize`, `build`, `check`, ... do from opening a model to what they leave behind.

Input: what the user asks for. Output: artifacts in a workspace directory, and values. Nothing is printed here.
"""
