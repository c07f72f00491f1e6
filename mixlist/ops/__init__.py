"""Tell what operators allow and do: schemas, type signatures, names, one table of traits."""
