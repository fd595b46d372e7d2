"""The whole way, stage by stage: the only folder that knows all stages.

Enters: what the user asks for. Leaves: artifacts in a workspace directory, and values. Nothing is printed here.
"""
