"""The whole flow, stage by stage: the only package that knows all stages.

Input: what the user asks for. Output: artifacts in a workspace directory, and values. Nothing is printed here.
"""
