"""The routes of the HTTP interface and their handlers.

routes, admin_routes   every route: what it takes and what it answers
openapi, schemas       the document that is made of them
requests               bodies as models; their schemas are in the document
programs, runs         versions of programs; lists of runs, their changes, inputs and children
programs_and_runs, run_streams, results, secrets, admin, history, health, metrics   handlers
"""
