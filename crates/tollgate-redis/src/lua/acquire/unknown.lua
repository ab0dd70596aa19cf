  do return redis.error_reply('ERR this script does not know the rule of a limit') end
