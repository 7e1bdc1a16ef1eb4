"""What `import grpobench` offers: recipes, runs, results and lists for notebooks and scripts."""
