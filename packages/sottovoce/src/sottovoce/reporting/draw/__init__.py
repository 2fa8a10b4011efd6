"""Every figure of the package: SVG for pages, PNG for audits and papers, in one style."""
