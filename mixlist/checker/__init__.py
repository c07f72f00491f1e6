"""Does a mixed model overflow, and how far is it from the original?"""
