"""The laboratory: studies as plain data, a durable store, runners, statistics, figures and
reports.
"""
