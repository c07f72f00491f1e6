"""What tests share: builders of models, random graphs, oracles, checks of the promises to users."""
