"""SQL schema under the import path that plugins use.

It is defined in `trinity.common.schema.sql_schema`.
"""

from trinity.common.schema.sql_schema import Base, DPODataModel, ExperienceModel, SFTDataModel, TaskModel

__all__ = ["Base", "DPODataModel", "ExperienceModel", "SFTDataModel", "TaskModel"]
