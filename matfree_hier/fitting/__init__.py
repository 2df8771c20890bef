"""The stages of a fit behind `HierarchicalSpectralRegressor`, and what they leave."""
