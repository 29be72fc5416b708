"""The routes of a name's versions, a part of the route table."""

from symphony_runtime.gateway.api.programs import versions
from symphony_runtime.gateway.http.route import Answer, Route

VERSION_ROUTES: tuple[Route, ...] = (
    Route(
        "PUT", "/v1/programs/{program}", "putAlias", versions.put_alias,
        "Point a name, maybe a new one, at a program: a version of it from then on",
        {200: Answer("the program", "Program")},
        body=("application/json", "AliasRequest"),
    ),
    Route(
        "GET", "/v1/programs/{program}/versions", "listVersions", versions.list_versions,
        "List the versions of a name, with their runs and errors",
        {200: Answer("all of them, newest first", "ProgramVersionPage")},
    ),
    Route(
        "DELETE", "/v1/programs/{program}/versions", "deleteName", versions.delete_name,
        "Delete a name with its versions, but for programs that another name has",
        {204: Answer("deleted")},
    ),
    Route(
        "DELETE", "/v1/programs/{program}/versions/{version}", "deleteVersion",
        versions.delete_version,
        "Delete a version that its name does not point at; its runs continue",
        {204: Answer("deleted")}, problems=(409,),
    ),
)  # fmt: skip
