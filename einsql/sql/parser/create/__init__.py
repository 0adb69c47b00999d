"""CREATE VIEW, MACRO, FUNCTION and AGGREGATE: their headers, parameters and bodies."""
