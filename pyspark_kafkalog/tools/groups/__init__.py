"""The command consumer-groups.

consumer_groups   options, --list, --delete, --delete-offsets
describe          --describe: offsets with lag, members or state
resets            --reset-offsets: the plan, the commit and the CSV of new offsets
"""
