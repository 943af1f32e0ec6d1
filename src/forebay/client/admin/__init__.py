"""Administration of clusters, databases, tables and tiering."""
