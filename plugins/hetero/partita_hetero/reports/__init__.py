"""Pictures: GraphViz files and Gantt charts."""
