"""Run studies: describe them as plain data, train and store them, test the results, and write
reports.
"""
