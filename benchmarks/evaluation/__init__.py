"""The evaluation: experiments of the papers beside other systems, on one page."""
