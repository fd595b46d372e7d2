"""The search: which places, scheme and forms to plan with, which plans to measure, which is the fastest that holds.

Input: an opened model and limits. Output: the ledger of what was tried. Nothing is written here.
"""
