"""The routes of files and batches, a part of the route table."""

from symphony_runtime.gateway.batches import handlers as batches
from symphony_runtime.gateway.files import handlers as files
from symphony_runtime.gateway.http.route import LIMIT, ONCE, Answer, Parameter, Route

_AFTER = Parameter("after", "the `last_id` of the page before")

FILE_AND_BATCH_ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/files", "createFile", files.create_file,
        "Upload a file: the input of a batch, or a user's data",
        {200: Answer("stored", "File")}, problems=(404, 507),
        body=("multipart/form-data", "FileForm"), errors="OpenAIError",
    ),
    Route(
        "GET", "/v1/files", "listFiles", files.list_files,
        "List files, those of batches' results among them",
        {200: Answer("a page, newest first", "FileList")},
        parameters=(
            LIMIT, _AFTER, Parameter("purpose", "only files with this purpose"),
            Parameter("order", "by age", {"type": "string", "enum": ["asc", "desc"]}),
        ),
        errors="OpenAIError",
    ),
    Route(
        "GET", "/v1/files/{file}", "getFile", files.get_file, "Show a file",
        {200: Answer("the file", "File")}, errors="OpenAIError",
    ),
    Route(
        "GET", "/v1/files/{file}/content", "getFileContent", files.get_content,
        "Send a file's bytes",
        {200: Answer("the bytes", "FileContent", "application/octet-stream")},
        errors="OpenAIError",
    ),
    Route(
        "DELETE", "/v1/files/{file}", "deleteFile", files.delete_file,
        "Delete a file that no live batch reads",
        {200: Answer("deleted", "FileDeleted")}, problems=(409,), errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/batches", "createBatch", batches.create_batch,
        "Run the requests of a file, at low priority",
        {200: Answer("it is checked, then run", "Batch")}, problems=(404, 409, 422, 507),
        parameters=(ONCE,), body=("application/json", "BatchRequest"), errors="OpenAIError",
    ),
    Route(
        "GET", "/v1/batches", "listBatches", batches.list_batches, "List batches",
        {200: Answer("a page, newest first", "BatchList")},
        parameters=(LIMIT, _AFTER), errors="OpenAIError",
    ),
    Route(
        "GET", "/v1/batches/{batch}", "getBatch", batches.get_batch, "Show a batch",
        {200: Answer("the batch", "Batch")}, errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/batches/{batch}/cancel", "cancelBatch", batches.cancel_batch,
        "Cancel a batch: its results so far are kept",
        {200: Answer("it ends soon, or has", "Batch")}, problems=(409,), errors="OpenAIError",
    ),
)  # fmt: skip
