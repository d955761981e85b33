"""Copies of a log directory, and its return to a broker.

export              in place, as a copy, or into a broker's directory
copy                a copy as of one commit
broker_differences  what a broker's own metadata log does not know
"""
