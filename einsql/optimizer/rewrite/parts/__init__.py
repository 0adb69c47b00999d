"""Rules that give operations parts, which sites compute.

Parts are split keys, rounds of rings, parts of ordered states, and rows that choose blocks.
"""
